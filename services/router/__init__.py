"""The Router: hears the fleet, keeps a scoreboard, picks a worker for each request and passes its stream on."""
