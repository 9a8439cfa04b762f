"""The Worker: one engine with its models, in front of it a bounded queue, beside it a reporter."""
