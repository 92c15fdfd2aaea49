#include "longspan/train/stage.h"

#include "longspan/objectives/preference.h"

namespace longspan {

std::unique_ptr<Stage> make_stage(const StageContext& context) {
  const std::string& stage = context.config.stage;
  if (stage == "dpo") return make_preference_stage(context);
  if (stage == "kto") return make_kto_stage(context);
  if (stage == "rm") return make_reward_stage(context);
  return make_language_stage(context);
}

bool wants_reference(const Config& config) {
  return config.stage == "kto" ||
         (config.stage == "dpo" && has_reference(pair_loss_from(config.pref_loss)));
}

}  // namespace longspan
