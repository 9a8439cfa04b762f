"""The load generator behind `ladr bench`: arrivals, the fleet to send them to, what is measured, and its reports."""
