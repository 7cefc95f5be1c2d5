"""Which stored experience next: draws by priority, and draws apart for each member of a group."""
