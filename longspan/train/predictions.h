// Answers of the model to the rows of evaluation (predict_with_generate).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "longspan/data/example_set.h"
#include "longspan/generation/generate.h"
#include "longspan/liveness/run_control.h"
#include "longspan/session/session.h"
#include "longspan/settings/generation_settings.h"
#include "longspan/text/local_time.h"
#include "longspan/text/tokenizer.h"
#include "longspan/train/encoded_data.h"

namespace longspan {

class TrainingLog;

class Predictions {
 public:
  struct Parts {
    RowSettings config;
    int64_t batch_size;      // answers of a process at a time
    const ExampleSet& rows;  // by eval_rows_of()
    const LocalTime& template_time;
    Session& session;
    const RunControl& control;
    int ranks_here;  // on this machine
  };
  /// The parts must outlive this object. Throws UserError. Not collective.
  explicit Predictions(Parts parts);

  /// Answers all rows, unless the model is that of the last answers, and returns the means of BLEU
  /// and ROUGE. nullopt: a rank was told to stop. Collective.
  std::optional<EvaluationResult> evaluate();
  /// Writes the last answers, as LLaMA-Factory does, and predict_results.json into the log's
  /// folder. Throws UserError. Not collective.
  void write(TrainingLog& log) const;
  /// Returns the means of the last answers, for the user.
  std::string scores() const;

 private:
  std::string description() const;
  std::string text_of(const Answer& answer, bool skip_special_tokens) const;
  EvaluationResult compared(double seconds) const;

  Parts parts_;
  const GenerationSettings& settings_;
  Tokenizer tokenizer_;
  GenerationOptions options_;
  std::string warning_;                                 // until it is told
  std::vector<std::vector<int32_t>> prompts_, labels_;  // tokens of questions, and of the answers
  std::vector<Answer> answers_;                         // of the model after `step_` steps
  int64_t step_ = -1;
  EvaluationResult result_;
};

/// Removes the files of evaluations and predictions that a run is about to write into `folder`, so
/// that files of an earlier run do not pass for its own. Throws UserError.
void remove_earlier_answers(const MethodSettings& config, const std::string& folder);

}  // namespace longspan
