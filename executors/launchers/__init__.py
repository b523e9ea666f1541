"""Executor parts for launchers inside jobs: torchrun, NVRx, torchft, PyTorch Lightning."""
