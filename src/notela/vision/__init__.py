"""Images: the paper's networks, and the corruptions of CIFAR-10-C and ImageNet-C."""
