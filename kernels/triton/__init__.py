"""GPU bodies of the kernels room, in Triton; imported only when a tensor on a GPU asks for one.

They compile ahead of time without a GPU (`decodex kernels compile`) and run on CPU tensors with TRITON_INTERPRET=1.
Launch without fused multiply-adds wherever bits must equal the reference's plain multiplies and adds.
"""
