// The rules of a run for its file of rollouts.
#pragma once

#include <memory>

#include "longspan/data/turns.h"
#include "longspan/rollouts/rollout_line.h"
#include "longspan/text/local_time.h"
#include "longspan/text/tokenizer.h"

namespace longspan {

struct DataSettings;
struct MethodSettings;
struct ModelSettings;
struct PreferenceSettings;

/// The sections of the configuration that the rules depend on.
struct FileRuleSettings {
  const ModelSettings& model;
  const MethodSettings& method;
  const PreferenceSettings& preferences;
  const DataSettings& data;
};

/// The rules with the objects that they refer to.
class FileRules {
 public:
  /// Reads the tokenizer. Throws UserError.
  FileRules(const FileRuleSettings& config, int64_t vocab_size, const LocalTime& template_time);

  /// This object must outlive the result.
  const RolloutRules& rules() const { return rules_; }

 private:
  Tokenizer tokenizer_;
  std::unique_ptr<TurnEncoder> turns_;
  RolloutRules rules_;
};

}  // namespace longspan
