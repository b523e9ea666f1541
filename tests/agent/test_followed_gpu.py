"""The stand-in GPU that follows a real process (`follow`): the contract is that of a GPU at work, idle, and left."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pynvml as nv
import pytest

from tests.fake_nvml.fixtures import Play
from tests.fake_nvml.parts_scenario import following, with_gpm
from tests.fake_nvml.scenario import gpus
