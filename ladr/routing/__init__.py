"""The routing of requests as a library: what is known of workers, policies that pick one, and the way of a request.

The Router is it behind gRPC; a look-aside client is it in your own process; the simulator in benchmarks/ drives the same
objects.
"""
