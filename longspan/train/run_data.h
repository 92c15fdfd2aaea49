// The rows of a run: read, encoded, and equal on every rank.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "longspan/base/fnv1a.h"
#include "longspan/comm/group.h"
#include "longspan/data/example_set.h"
#include "longspan/data/part_encoder.h"
#include "longspan/models/model_config.h"
#include "longspan/report/events.h"
#include "longspan/text/local_time.h"
#include "longspan/text/saved_chat.h"
#include "longspan/train/encoded_data.h"

namespace longspan {

class EarlyRows;

struct RunData {
  std::unique_ptr<ExampleSet> train, eval;  // train: empty without `dataset`
  /// fingerprint_of() the sets; `fingerprint` is empty without `dataset`.
  std::string fingerprint, eval_fingerprint;
  std::optional<SavedChat> chat;  // chat settings of the saved model, if a template is configured
  /// Not null: rows are encoded during the steps, and an example can be drawn once it was waited
  /// for. The fingerprints are then known at the end of the encoding.
  std::shared_ptr<EarlyRows> early;
};

/// All of a run's data but the examples.
struct DataNote {
  int64_t num_train = 0;  // examples of training, which come before those of evaluation
  std::string fingerprint, eval_fingerprint;
  std::optional<SavedChat> chat;
};

/// Reads and encodes the data sets, a part at a time where the rows' order allows it. `take` gets
/// the examples, training before evaluation. Reports an example, cut and left-out rows, and likely
/// mistakes. Without data sets, reads no tokenizer, and the saved model keeps the chat settings of
/// its folder. `template_time`: the run's time. Throws UserError.
DataNote read_data(const RowSettings& config, const ModelConfig& model,
                   const LocalTime& template_time, Events& events, const ExampleTaker& take);

/// A hash of all tokens, labels, columns, positions and desirabilities, in order.
class RowsFingerprint {
 public:
  void add(const Example& example);
  std::string value() const;

 private:
  Fnv1a hash_;
};
std::string fingerprint_of(const ExampleSet& examples);

/// Throws if ranks read different models: each rank reads the files on its own machine, which also
/// determine whether the head is untied (load_folder_config). Collective.
void require_same_model(const Group& world, const ModelConfig& model);

/// Throws if ranks hold different data; all ranks of a sequence group must hold the same rows.
/// Collective.
void require_same_data(const Group& world, const RunData& data);

}  // namespace longspan
