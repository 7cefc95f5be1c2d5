"""Which problem, goal, start or stored experience next."""
