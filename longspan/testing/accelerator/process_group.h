// Process groups of the simulated accelerator: Gloo's, by NCCL's rules.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace longspan::testing::accelerator {

/// A group whose messages a group of the CPU carries. As NCCL's:
/// - It takes dense tensors of the device that was current when it was made, and of no other.
/// - A collective runs on a stream of the group, after what the current stream was given before.
///   Work::wait() makes the current stream wait, and not the host; a barrier's makes both.
/// - Messages between startCoalescing and endCoalescing go together; where there is none,
///   endCoalescing returns null. A message has no tag: two ranks match theirs in their order.
/// - Tensors live as long as the work needs them.
///
/// All ranks must start the same collectives in the same order, which the store is asked about: the
/// one that comes second throws FaultError, where NCCL waits for ever or mixes numbers up. Gloo's
/// errors come out of what waits for the work. `carrier`: of this rank, over the same store.
c10::intrusive_ptr<c10d::Backend> make_group(c10::intrusive_ptr<c10d::Backend> carrier,
                                             c10::intrusive_ptr<c10d::Store> store);

}  // namespace longspan::testing::accelerator
