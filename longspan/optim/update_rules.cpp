// The register of the optimizers. Each optimizer's description is in its own file. No torch.
#include "longspan/registers/update_rule.h"

namespace longspan {

extern const UpdateRule kAdamW, kAdamW8bit, kMuon;

std::span<const UpdateRule* const> all_update_rules() {
  static constexpr const UpdateRule* kRules[] = {&kAdamW, &kAdamW8bit, &kMuon};
  return kRules;
}

}  // namespace longspan
