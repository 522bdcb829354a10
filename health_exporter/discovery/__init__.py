"""`health-exporter targets`: where the ranks' endpoints are, for Prometheus' file discovery."""
