"""The MetricsBus: hears the reports of all workers and tells them to all subscribers.

fleet.py is the pure core, bus.py runs it on a clock, servicer.py is the wire, backend.py and redis_backend.py are what lies
between several instances.
"""
