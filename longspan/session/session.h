// A model in training, step by step: the interface for training loops. A row is one sequence, or
// several packed sequences, that the ranks of a sequence-parallel group share. run_training is such
// a loop; examples/library.cpp shows another loop.
//
//   Session session(config, {.events = &events});
//   for (int64_t step = 0; step < num_steps; ++step) {
//     const std::vector<Row> rows = {session.row(samples_of(step))};
//     const BatchCounts counts = session.count(rows);
//     const RowLosses losses = session.forward_backward(rows, counts.weight);
//     const double norm = session.reduce();
//     session.clip(norm, 1.0);
//     session.update(1e-5);
//   }
//   session.save("trained");
//
// Every member is collective unless its comment says otherwise: every process of the session calls
// the same members in the same order. All ranks of a sequence-parallel group pass the same rows.
//
// A session prints nothing, ends no process, handles no signal and changes no setting of the
// process. Several sessions may exist in one process, one after another or concurrently, also as
// ranks of one run on threads. A program of several ranks over Gloo ignores SIGPIPE (Python does):
// Gloo writes without MSG_NOSIGNAL, and a lost rank would end the others before they can report it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "longspan/cuda/device_choice.h"
#include "longspan/data/example_source.h"
#include "longspan/generation/generate.h"
#include "longspan/liveness/run_control.h"
#include "longspan/memory/transfer.h"
#include "longspan/models/picture_features.h"
#include "longspan/report/events.h"
#include "longspan/session/loss_of_caller.h"
#include "longspan/session/run_plan.h"
#include "longspan/stages/row.h"

namespace longspan {

struct Config;
struct ObjectiveContext;
struct SavedChat;
struct RunParameters;
class Averages;
class ModelSaver;
class ModelUpdate;
class Objective;
class Reference;
class RowTraffic;
class SequenceParallel;
class ShardedParameters;
class Workers;
struct TrainedModel;

/// A model in memory, which replaces the folder model_name_or_path.
struct ModelParts {
  ModelConfig config;                   // e.g. from parse_model_config()
  std::vector<NamedTensor> parameters;  // names of parameters_of(config.spec); copied
  /// Reads the pixels of the samples' pictures; the session may call the function in its own
  /// thread. Empty: pixels are read from the pictures' files, with the processor of
  /// model_name_or_path.
  FramePatches patches = {};
};

/// Objects that a session uses. Every member may be omitted.
struct SessionParts {
  Machine machine = {};               // GPUs and threads; default: one CPU thread
  Rendezvous where = {};              // default: one process
  RunControl* control = nullptr;      // null: nothing stops the session
  EventSink* events = nullptr;        // null: events are discarded
  const ModelParts* model = nullptr;  // null: model_name_or_path
  FramePatches patches = {};          // as ModelParts::patches, for a model of model_name_or_path
};

/// Sums over the global batch of a step: all rows of all data-parallel groups.
struct BatchCounts {
  double weight = 0.0;  // denominator of the stage's loss: labels, pairs or answers
  int64_t num_tokens = 0, num_samples = 0;
  int64_t num_computed_tokens = 0;  // a shared prompt counts once
};

/// Results of forward and backward on this rank's rows, still on the device.
struct RowLosses {
  /// Each row's contribution to the step's loss, on this rank; without a graph.
  std::vector<at::Tensor> contributions;
  bool replicated;            // equal on all ranks that share a row; otherwise parts to be summed
  std::vector<bool> counted;  // whether the step's sum has this rank's contribution
};

/// Sums over all ranks. The copy from the device to the host may still be running.
class SumsOfStep {
 public:
  /// `sums`: the loss, then the flags; fp64 on the device.
  explicit SumsOfStep(const at::Tensor& sums) : sums_(sums) {}
  /// Waits for the device.
  double loss() const { return value(0); }
  /// True if any rank passed a nonzero flag `number` to Session::sum_up().
  bool flag(int64_t number) const { return value(1 + number) > 0.0; }

 private:
  double value(int64_t number) const { return sums_.here().const_data_ptr<double>()[number]; }
  ToHost sums_;
};

class Session {
 public:
  /// Makes the run's plan, connects to the other processes, and makes the model, the reference and
  /// the optimizer. `config`: see load_session_config; copied. The objects in `parts` must outlive
  /// the session. Throws UserError. Throws CommunicationError if the ranks cannot connect.
  explicit Session(const Config& config, const SessionParts& parts = {});
  /// Makes a session for ranks that are already connected. All arguments must outlive the session.
  /// prepare() must be called before any other member but generate(). Throws as all_or_none() does.
  Session(const Config& config, const RunPlan& plan, Workers& workers, Events& events,
          const ModelParts* model = nullptr);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Makes the reference model (if the stage has one), the objective and the optimizer. `table`:
  /// precomputed reference log-probabilities, which replace the reference model. Called once.
  /// Throws as all_or_none() does.
  void prepare(std::unique_ptr<Reference> table = nullptr);
  /// Makes the stage's reference model.
  std::unique_ptr<Reference> make_reference();

  /// Runs a training loop of the caller. If the loop fails because other ranks have ended, run()
  /// finds the ended ranks and throws UserError with the cause. If the loop fails for another
  /// reason, run() tells the other ranks.
  void run(const std::function<void()>& loop);

  // Rows

  /// Makes a row with one document for each sample, and this rank's share of it. Throws UserError
  /// for ids outside the vocabulary. Not collective.
  Row row(std::vector<Sample> samples) const;
  Row row(const DrawnExamples& drawn) const;
  /// Makes a row that `ranks` share, with sequence_parallel_size: auto. Collective over `ranks`:
  /// all ranks make their rows in one order.
  Row row(const DrawnRow& drawn) const;
  /// Returns the sums over the global batch. Does not wait for the GPU.
  BatchCounts count(std::span<const Row> rows) const { return start_count(rows)(); }
  /// Starts count(), for example of the rows of a later step. The returned function is called once,
  /// and waits for the sums.
  std::function<BatchCounts()> start_count(std::span<const Row> rows) const;
  /// Returns the sum of `value` over the data-parallel groups, for the denominators of a caller's
  /// loss.
  double sum_over_groups(double value) const;

  // Steps

  /// Sets the number of the next step, from 0. The number seeds dropout. update() and drop() add 1
  /// to the number.
  void begin_step(int64_t step);
  /// Starts to read, in the background, the pixels of rows that later calls of forward_backward()
  /// compute in this order. Pixels wait in host memory (kPixelsAheadBytes). Each row is read ahead
  /// once. No-op for rows without pictures. Not collective.
  void read_ahead(std::span<const Row> rows);
  /// Adds the gradient of the stage's loss, whose denominator is `total_weight`. `stops`: called
  /// after each row in a session of one process; if `stops` returns true, the remaining rows are
  /// skipped. `ends_step`: these are the step's last rows on every rank. The sums of reduce() then
  /// start during the backward of the last row.
  RowLosses forward_backward(std::span<const Row> rows, double total_weight,
                             const std::function<bool()>& stops = {}, bool ends_step = false);
  /// Adds the gradient of a caller's loss.
  RowLosses forward_backward(std::span<const Row> rows, const LossOfCaller& loss,
                             const std::function<bool()>& stops = {});
  /// Sums the step's loss and some flags (0 or 1) over all ranks. Does not wait for the GPU. Adds
  /// the load of each expert to averages(). Called once after forward_backward().
  SumsOfStep sum_up(const RowLosses& losses, const std::vector<double>& flags = {});
  /// Sums the gradients over all ranks. Returns the norm of the sum.
  double reduce();
  /// Scales the gradients by min(1, max_norm / (norm + 1e-6)).
  void clip(double norm, double max_norm);
  /// Updates the parameters with the optimizer, and drops the gradients.
  void update(double learning_rate);
  /// Drops the gradients without an update.
  void drop();

  // Results

  /// Returns the mean of the stage's loss over the examples, and the means of the stage's other
  /// values by name. `batch_size`: examples per row. Calls `stops` about every half second.
  /// nullopt: `stops` returned true on some rank.
  std::optional<EvaluationResult> evaluate(const ExampleSet& examples, int64_t batch_size,
                                           const std::function<bool()>& stops = {});
  /// Returns log p of the row's labels on this rank, [L] fp64, without gradients.
  at::Tensor label_logprobs(const Row& row);
  /// Generates answers to prompts (token ids) with the current parameters, on the CPU of rank 0.
  /// Returns the answers on every rank. `num_at_a_time`: sequences in the key-value cache. Gathers
  /// sharded parameters; rank 0 then holds the whole model once more. `go_on`: called on rank 0 for
  /// each token; false ends all answers with FinishReason::kInterrupted. `on_all_ranks`: the ranks
  /// divide the prompts, so that each rank holds the whole model once more and calls `go_on`.
  std::vector<Answer> generate(const std::vector<std::vector<int32_t>>& prompts,
                               const GenerationOptions& options, int64_t num_at_a_time = 8,
                               const std::function<bool()>& go_on = {}, bool on_all_ranks = false);
  /// Saves the model, or the adapter, as a Hugging Face folder.
  void save(const std::string& folder);
  /// Saves folder/checkpoint-N after N steps: the model, the optimizer's state and `source`, the
  /// state of the caller's source of rows. Returns the complete checkpoint.
  std::string save_checkpoint(const std::string& folder, const std::string& source = "");
  /// Loads a checkpoint of save_checkpoint() or of a run. The session continues after the
  /// checkpoint's step. Returns the saved `source`.
  std::string load_checkpoint(const std::string& checkpoint);

  // Parts

  const Mesh& mesh() const;
  const ModelConfig& model() const;
  SequenceParallel& attention() const;
  at::Device device() const;
  /// True if every rank takes part in every row (ObjectiveContext::idle_rows).
  bool idle_rows() const;
  const TrainedModel& trained() const;
  /// Returns the parameters as the model uses them. With `bf16` and ZeRO on several ranks, matrices
  /// of layers are bf16 here, rounded from the fp32 masters, which updating().trained() returns.
  /// Under stage 3 a gathered parameter is empty between uses. With LoRA, stages 1 and 2 keep the
  /// masters' dtype.
  const std::vector<NamedTensor>& parameters() const;
  /// Returns the number of the next step: the number of updates and drops so far, or the number
  /// from begin_step().
  int64_t step() const;
  /// Returns the values besides the loss, summed over this rank's rows since the last clear.
  Averages& averages();
  /// Returns the means of averages() over all ranks, with the values that the objective derives
  /// from these means, in the order of a log line.
  NamedMeans means();

  /// Returns the owner of sharded parameters, if all ranks must save the model together; null if
  /// each rank has all parameters between uses.
  ShardedParameters* sharded_parameters() const;
  const ObjectiveContext& context() const;
  Objective& objective();
  ModelUpdate& updating();
  RowTraffic& traffic();
  /// Returns the parameters of this rank, for the memory estimate.
  RunParameters account() const;
  /// `chat`: chat settings of the saved model; nullopt: the settings in the folder of the initial
  /// model.
  ModelSaver saver(const std::optional<SavedChat>& chat) const;
  Events& events() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace longspan
