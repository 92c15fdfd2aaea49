// Demands of groups of keys: adapters, evaluation, generated answers, and logging services. No
// torch.
#pragma once

#include <functional>
#include <string_view>

namespace longspan {

struct Config;
struct OutputSettings;

/// `demand` of each function: as in check_dealing().

/// Keys of adapters that change more than the sums of linear layers: use_dora, additional_target.
void check_adapter(const Config& config,
                   const std::function<void(bool holds, std::string_view problem)>& demand);
void check_pissa(const Config& config,
                 const std::function<void(bool holds, std::string_view problem)>& demand);
/// Rows of evaluation: val_size, eval_dataset, do_eval and eval_strategy.
void check_evaluation(const Config& config,
                      const std::function<void(bool holds, std::string_view problem)>& demand);
/// Keys of answers in evaluation, and do_train.
void check_answers(const Config& config,
                   const std::function<void(bool holds, std::string_view problem)>& demand);
void check_services(const OutputSettings& config,
                    const std::function<void(bool holds, std::string_view problem)>& demand);

}  // namespace longspan
