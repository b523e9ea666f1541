"""What enters a driver, in processes that can be left behind: a sampler, a standby, and who watches them."""
