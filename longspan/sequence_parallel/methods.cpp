// The register of the methods of sequence parallelism. Each method's description is in its own
// file. No torch.
#include "longspan/registers/method.h"

namespace longspan {

extern const Method kUlysses, kDummyHeadUlysses, kXtunerUlysses, kAsyncUlysses, kBalancedUlysses,
    kRing, kStripedRing, kZigzagRing, kUsp, kAllGather, kLlama3, kLoongTrain;

std::span<const Method* const> all_methods() {
  static constexpr const Method* kMethods[] = {&kUlysses,      &kDummyHeadUlysses, &kXtunerUlysses,
                                               &kAsyncUlysses, &kBalancedUlysses,  &kRing,
                                               &kStripedRing,  &kZigzagRing,       &kUsp,
                                               &kAllGather,    &kLlama3,           &kLoongTrain};
  return kMethods;
}

}  // namespace longspan
