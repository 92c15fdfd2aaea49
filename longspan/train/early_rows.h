// The rows of a run that trains while its rows are encoded.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "longspan/comm/group.h"
#include "longspan/data/early_encoder.h"
#include "longspan/liveness/notices.h"
#include "longspan/report/events.h"
#include "longspan/train/encoded_data.h"
#include "longspan/train/passed_rows.h"
#include "longspan/train/run_data.h"

namespace longspan {

/// Passes on the examples and returns all else, as read_data() does; tells lines to the events.
using ReadData = std::function<DataNote(Events&, const ExampleTaker&)>;

/// The encoding on the rank that encodes for its machine.
class EarlyData {
 public:
  /// `makers`: all that makes rows of texts, besides the files of the tokenizer. `num_trained`: of
  /// EarlyJob.
  struct Inputs {
    const RowSettings& config;
    const ModelConfig& model;
    const LocalTime& template_time;
    std::string makers;
    int64_t num_trained = 0;
  };
  /// Reads and counts the rows. Null: read_data() has to encode them (too few). Throws UserError.
  static std::unique_ptr<EarlyData> read(const Inputs& inputs);

  /// Returns all that is known before the encoding. The fingerprints are hashes of texts and
  /// `makers`, and begin with kTextsOfRows.
  DataNote note() const;
  int64_t num_rows() const { return encoder_->num_rows(); }
  /// Starts the encoding. `note`: a record of the file behind the rows. After the last row, a
  /// thread calls `keep` with a function that gives all that read_data() gives. `is_awaited`: the
  /// user asks for the kept file.
  void start(std::string_view note, std::function<void(Events&, const ReadData&)> keep,
             bool is_awaited);
  bool is_awaited() const { return is_awaited_; }
  const EarlyFileWriter& file() const { return encoder_->file(); }
  EarlyEncoder& encoder() { return *encoder_; }

  /// After the end of the encoding: the fingerprints, and the lines that `keep` told.
  const DataNote& result() const { return result_; }
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  explicit EarlyData(const Inputs& inputs);
  DataNote finish(Events& events, const ExampleTaker& take);

  RowSettings config_;
  ModelConfig model_;
  LocalTime template_time_;
  std::string makers_;
  Tokenizer tokenizer_;
  bool is_awaited_ = false;
  std::vector<std::string> notes_;
  SeenRows seen_;
  DataNote result_;
  std::vector<std::string> lines_;
  std::unique_ptr<EarlyEncoder> encoder_;  // the last member: its thread ends first
};

/// The encoding as all ranks see it. All members but is_known() are collective, and throw on all
/// ranks what the encoding throws.
class EarlyRows {
 public:
  using Stops = std::function<bool()>;

  /// `own`: null on ranks that read the file of another rank. `data`: the rows; its fingerprints
  /// begin with kTextsOfRows, unless this machine found the rows encoded. The references must
  /// outlive this object.
  EarlyRows(const Group& world, Notices& notices, Events& events, std::unique_ptr<EarlyData> own,
            const RunData& data)
      : world_(world),
        notices_(notices),
        events_(events),
        own_(std::move(own)),
        num_train_(data.train->size()),
        num_rows_(num_train_ + data.eval->size()),
        fingerprint_(data.fingerprint),
        eval_fingerprint_(data.eval_fingerprint) {}

  /// Waits until these rows of training are encoded.
  void wait_for(const std::vector<int64_t>& rows);
  /// Waits for all rows of evaluation. Returns false if `stops` asked a rank to stop.
  bool wait_for_evaluation(const Stops& stops);
  /// Returns the fingerprint of all rows, or, until all are encoded, that of their texts. Not
  /// collective.
  const std::string& fingerprint() const { return fingerprint_; }
  /// Ends the encoding after the last step. For tokenized_path, waits until all rows are kept or
  /// `stops` asks a rank to stop. Says what is not kept; a row that no step needed is no error.
  void end(const Stops& stops);

 private:
  /// Repeats `wait`, on ranks that encode, until all return true. Returns false if `stops` asked a
  /// rank to stop.
  bool wait_or_stop(const Stops& stops, const std::function<bool(const Stops&)>& wait);
  /// Takes the results of the encoding, which has ended.
  void take_results();
  /// Replaces the fingerprint of texts by that of the encoded rows, which is equal on all ranks
  /// that know it.
  void agree(std::string& fingerprint, const std::string& what) const;
  bool any_of_ranks(bool mine) const;

  const Group& world_;
  Notices& notices_;
  Events& events_;
  std::unique_ptr<EarlyData> own_;
  int64_t num_train_, num_rows_;
  std::string fingerprint_, eval_fingerprint_;
  bool is_complete_ = false;  // the same on all ranks
};

}  // namespace longspan
