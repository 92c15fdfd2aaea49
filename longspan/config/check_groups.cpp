#include "longspan/config/check_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "longspan/config/config.h"
#include "longspan/registers/stage.h"
#include "longspan/settings/choices.h"

namespace longspan {

void check_pissa(const Config& config,
                 const std::function<void(bool holds, std::string_view problem)>& demand) {
  const MethodSettings &method = config.method, none;
  demand(method.pissa_init || (method.pissa_iter == none.pissa_iter && !method.pissa_convert),
         "pissa_iter and pissa_convert are for pissa_init: true; remove them, or set that");
  if (method.pissa_init) {
    demand(config.model.adapter_name_or_path.empty(),
           "pissa_init is for a new adapter; remove it, or adapter_name_or_path");
    demand(!method.use_dora, "pissa_init is not for use_dora: true; remove one of them");
    const Stage& stage = stage_of(method);
    demand(stage.rollouts == RolloutUse::kNone && !stage.has_value_head,
           fmt::format("pissa_init is not for stage: {}; remove it", stage.name));
    demand(!stage.has_reference(config.preferences) || !config.preferences.ref_model.empty(),
           "pissa_init takes a part out of the model that would be the reference; give ref_model, "
           "or remove it");
  }
}

void check_evaluation(const Config& config,
                      const std::function<void(bool holds, std::string_view problem)>& demand) {
  const Interval evaluation = interval_of(config.optimization.eval_strategy);
  const bool splits = config.data.val_size > 0, evaluates = config.method.do_eval ||
                                                            config.method.generation.do_predict ||
                                                            evaluation != Interval::kNever;
  demand(config.data.val_size < 1 || std::nearbyint(config.data.val_size) == config.data.val_size,
         "val_size: give a share below 1 (0.1) or a whole number of rows (100)");
  demand(!splits || config.data.eval_dataset.empty(),
         "eval_dataset and val_size are both given: keep one");
  demand(!evaluates || splits || !config.data.eval_dataset.empty(),
         "do_eval, do_predict or eval_strategy is given, and there is nothing to evaluate on; give "
         "eval_dataset, or val_size for a validation split of dataset");
  const Stage& stage = stage_of(config.method);
  demand(!evaluates || stage.rollouts == RolloutUse::kNone,
         fmt::format("do_eval and eval_strategy: stage {} has no evaluation; remove them",
                     stage.name));
  demand(evaluates || (!splits && config.data.eval_dataset.empty()),
         "rows for evaluation are given (val_size or eval_dataset) but nothing evaluates; add "
         "eval_strategy: steps (or epoch), or do_eval: true for once at the end");
  demand(evaluates || !config.preferences.compute_accuracy,
         "compute_accuracy is for evaluations, and nothing evaluates; remove it, or add do_eval or "
         "eval_strategy");
  demand(!config.optimization.eval_steps || evaluation == Interval::kSteps,
         "eval_steps is given without eval_strategy: steps");
}

void check_answers(const Config& config,
                   const std::function<void(bool holds, std::string_view problem)>& demand) {
  const GenerationSettings &given = config.method.generation, defaults;
  const bool evaluates =
      config.method.do_eval || interval_of(config.optimization.eval_strategy) != Interval::kNever;
  demand(!given.do_predict || given.predict_with_generate,
         "do_predict writes generated answers; add predict_with_generate: true");
  demand(!given.predict_with_generate || given.do_predict || evaluates,
         "predict_with_generate is for evaluations, and nothing evaluates; remove it, or add "
         "do_predict, do_eval or eval_strategy");
  demand(!given.predict_with_generate || !config.preferences.compute_accuracy,
         "predict_with_generate compares generated answers, and compute_accuracy compares single "
         "tokens; keep one");
  const bool generates_otherwise = given.do_sample != defaults.do_sample ||
                                   given.temperature != defaults.temperature ||
                                   given.top_p != defaults.top_p || given.top_k != defaults.top_k ||
                                   given.max_new_tokens != defaults.max_new_tokens ||
                                   given.repetition_penalty != defaults.repetition_penalty ||
                                   given.skip_special_tokens != defaults.skip_special_tokens;
  demand(given.predict_with_generate || !generates_otherwise,
         "do_sample, temperature, top_p, top_k, max_new_tokens, repetition_penalty and "
         "skip_special_tokens are for predict_with_generate: true; remove them, or set it "
         "(`longspan chat` and `longspan generate` take them too)");
  demand(config.method.do_train || config.data.val_size == 0 || !config.data.dataset.empty(),
         "val_size splits rows off dataset, and dataset is missing; give eval_dataset");
  // The rest of a greedy configuration may stand at values that leave every token.
  const bool greedy = !given.do_sample || given.temperature == 0;
  const bool draws = (given.temperature != defaults.temperature && given.temperature != 0 &&
                      given.temperature != 1) ||
                     (given.top_p != defaults.top_p && given.top_p != 1) ||
                     (given.top_k != defaults.top_k && given.top_k != 0);
  demand(!given.predict_with_generate || !greedy || !draws,
         "temperature, top_p, top_k and do_sample contradict each other: do_sample: false (or "
         "temperature: 0) takes the likeliest token, the others draw one; keep one");
  const std::string& resumed = config.output.resume_from_checkpoint;
  demand(config.method.do_train || !given.predict_with_generate || resumed.empty() ||
             resumed == "false",
         "resume_from_checkpoint is for training, and do_train is not true; give the checkpoint as "
         "adapter_name_or_path or model_name_or_path");
  demand(config.method.do_train ||
             (given.predict_with_generate && (given.do_predict || config.method.do_eval)),
         "do_train must be true; without training, only predict_with_generate: true with "
         "do_predict or do_eval does something");
}

void check_adapter(const Config& config,
                   const std::function<void(bool holds, std::string_view problem)>& demand) {
  const MethodSettings& method = config.method;
  const bool grows = trains_adapter(method) && method.resize_vocab;
  const bool whole = !method.additional_target.empty() || grows;
  const std::string key =
      grows ? "resize_vocab (with the embedding and head of LoRA)" : "additional_target";
  demand(!method.use_dora || !config.model.pure_bf16,
         "use_dora is not for pure_bf16: true, since the magnitudes would be rounded to bf16 and "
         "lose the steps of the learning rate; set bf16: true in place of pure_bf16");
  demand(!whole || !method.pissa_init,
         fmt::format("{} is not for pissa_init: true; remove one of them", key));
  const Stage& stage = stage_of(method);
  demand(
      !whole || !stage.has_reference(config.preferences) || !config.preferences.ref_model.empty(),
      fmt::format("{} trains a part of the model that would be the reference; give ref_model, or "
                  "remove it",
                  key));
  const bool sends = config.preferences.policy.rollout_update.value_or("") == "lora";
  demand(!sends || (!whole && !method.use_dora),
         "rollout_update: lora is for plain LoRA, since the servers take no other adapters; remove "
         "use_dora, additional_target and resize_vocab, or choose another rollout_update");
}

void check_services(const OutputSettings& config,
                    const std::function<void(bool holds, std::string_view problem)>& demand) {
  const std::vector<std::string> services = services_of(config);
  const ServiceSettings &given = config.services, defaults;
  demand(std::ranges::find(services, "trackio") != services.end() ||
             (given.project == defaults.project && given.trackio_space_id.empty()),
         "project and trackio_space_id are for report_to: trackio; remove them, or add it");
  demand(given.use_swanlab ||
             (given.swanlab_project == defaults.swanlab_project &&
              given.swanlab_workspace.empty() && given.swanlab_run_name.empty() &&
              given.swanlab_mode == defaults.swanlab_mode && given.swanlab_logdir.empty()),
         "the keys swanlab_* are for use_swanlab: true; remove them, or set that");
}

}  // namespace longspan
