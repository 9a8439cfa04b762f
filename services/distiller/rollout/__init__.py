"""Students on their way into service: more and more of the requests for a name, and back if they do worse."""
