"""What tests and measurements are made with: real servers, gateways and upstreams, clients, and conditions that are awaited."""
