#include "longspan/train/file_rules.h"

#include "longspan/data/run_tokenizer.h"
#include "longspan/registers/stage.h"
#include "longspan/settings/data_settings.h"
#include "longspan/settings/method_settings.h"
#include "longspan/settings/model_settings.h"
#include "longspan/settings/preference_settings.h"
#include "longspan/train/rollout_source.h"

namespace longspan {

FileRules::FileRules(const FileRuleSettings& config, int64_t vocab_size,
                     const LocalTime& template_time)
    : tokenizer_(run_tokenizer(config.model.model_name_or_path, config.data)),
      turns_(make_turn_encoder(config.data, stage_of(config.method), tokenizer_, template_time)),
      rules_{.vocab_size = vocab_size,
             .needs_reward = rollout_needs(config.method, config.preferences).rewards,
             .tokenizer = &tokenizer_,
             .turns = turns_.get()} {}

}  // namespace longspan
