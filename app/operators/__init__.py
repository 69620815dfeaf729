"""What operators ask over HTTP: health, metrics, records, commands; and what stands behind the answers."""
