# SPDX-License-Identifier: Apache-2.0
"""Interfaces of other systems on Sherd, so that their training loops run after changing an import:

    from sherd.compat.fsdp2 import fully_shard, MixedPrecisionPolicy   # was torch.distributed.fsdp
    from sherd.compat.megatron_fsdp import fully_shard                 # was megatron_fsdp

What Sherd does not have raises, by name, and says what to do instead."""
