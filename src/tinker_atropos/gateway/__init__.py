"""OpenAI's and sglang's API in front of Tinker sampling: which policy answered is recorded before the answer leaves."""
