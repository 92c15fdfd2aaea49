// Process groups of the simulated accelerator: Gloo with the rules of NCCL.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace longspan::testing::accelerator {

/// Makes a group whose messages a CPU group carries. As in NCCL:
/// - The group accepts only dense tensors of the device that was current when the group was made.
/// - A collective runs on a stream of the group, after all earlier work of the current stream.
///   Work::wait() makes the current stream wait, not the host; a barrier's wait blocks both.
/// - A reduce-scatter sums in the order of a ring: of rank r's share, rank r + 1's part comes
/// first.
/// - Messages between startCoalescing and endCoalescing are sent together; without messages,
///   endCoalescing returns null. Messages have no tags: two ranks match them in order.
/// - Tensors live until the work has ended.
///
/// All ranks must start the same collectives in the same order. Each rank compares its n-th
/// collective to the n-th collective of the rank that came first, through the store. A rank with
/// another collective throws FaultError; NCCL would hang or mix up data. A wait for the work throws
/// the errors of Gloo. `carrier`: this rank's group, over the same store.
c10::intrusive_ptr<c10d::Backend> make_group(c10::intrusive_ptr<c10d::Backend> carrier,
                                             c10::intrusive_ptr<c10d::Store> store);

}  // namespace longspan::testing::accelerator
