"""SPS and SPS+ (Summarize, Privatize, Synthesize): the public half."""
