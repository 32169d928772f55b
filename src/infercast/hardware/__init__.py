"""What a GPU is: frozen specifications read from data files."""

from infercast.hardware.gpu import Gpu
from infercast.hardware.load import gpu_from_driver_name, gpu_names, load_gpu, with_network

__all__ = ["Gpu", "gpu_from_driver_name", "gpu_names", "load_gpu", "with_network"]
