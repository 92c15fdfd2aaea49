// The register of the stages of training. Each stage's description is in its own file. No torch.
#include "longspan/registers/stage.h"

namespace longspan {

extern const Stage kPretraining, kSft, kRewardModel, kDpo, kKto, kGrpo, kDistill, kDistillSft;

std::span<const Stage* const> all_stages() {
  static constexpr const Stage* kStages[] = {&kPretraining, &kSft,  &kRewardModel, &kDpo,
                                             &kKto,         &kGrpo, &kDistill,     &kDistillSft};
  return kStages;
}

}  // namespace longspan
