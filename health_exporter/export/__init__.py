"""What leaves the process: Prometheus's endpoint and OTLP.

Everything here reads immutable snapshots; nothing here is ever waited for by the training thread.
"""
