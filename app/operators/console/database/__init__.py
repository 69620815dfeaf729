"""The pages about the consumers' database: order, outboxes, projections."""
