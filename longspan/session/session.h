// A model in training, step by step: the interface for training loops. run_training is one of them;
// examples/library.cpp shows another.
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
// Every process of the session calls the same members in the same order (collective), unless said
// otherwise. All ranks of a sequence-parallel group give the same rows.
//
// A session prints nothing, ends no process, handles no signal and changes no setting of the
// process. Several sessions may live in one process, one after another or at once, also as ranks of
// one run on threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "longspan/cuda/device_choice.h"
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
  ModelConfig config;                   // e.g. parse_model_config of a config.json
  std::vector<NamedTensor> parameters;  // named as by parameters_of(config.spec); copied
  /// Reads pixels of the pictures of samples, also in a thread of the session's; empty: from their
  /// files, by the processor of model_name_or_path.
  FramePatches patches = {};
};

/// Surroundings of a session; each may be left out.
struct SessionParts {
  Machine machine = {};               // GPUs and threads; default: one CPU thread
  Rendezvous where = {};              // default: alone
  RunControl* control = nullptr;      // null: nothing stops the session
  EventSink* events = nullptr;        // null: nobody listens
  const ModelParts* model = nullptr;  // null: model_name_or_path
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
  bool replicated;  // the same on all members of a sequence group; otherwise parts to be summed
};

/// A sum over all ranks that may still be on its way from the device.
class SumsOfStep {
 public:
  /// `sums`: the loss, then the flags; fp64 on the device.
  explicit SumsOfStep(const at::Tensor& sums) : sums_(sums) {}
  /// Waits for the device.
  double loss() const { return value(0); }
  /// True if any rank called Session::sum_up with this flag.
  bool flag(int64_t number) const { return value(1 + number) > 0.0; }

 private:
  double value(int64_t number) const { return sums_.here().const_data_ptr<double>()[number]; }
  ToHost sums_;
};

class Session {
 public:
  /// Plans, meets the other processes and reads the model, with its reference and optimizer.
  /// `config`: see load_session_config; copied. The parts must outlive the session. Throws
  /// UserError, and CommunicationError if the ranks do not find each other.
  explicit Session(const Config& config, const SessionParts& parts = {});
  /// The same for ranks that have met. All arguments must outlive the session. Call prepare()
  /// before anything else. Throws as all_or_none.
  Session(const Config& config, const RunPlan& plan, Workers& workers, Events& events,
          const ModelParts* model = nullptr);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Makes the reference model (if the stage has one), the objective and the optimizer. `table`:
  /// precomputed reference log-probabilities, which replace the reference model. Called once.
  /// Throws as all_or_none.
  void prepare(std::unique_ptr<Reference> table = nullptr);
  /// Makes the stage's reference model.
  std::unique_ptr<Reference> make_reference();

  /// Runs a loop of the caller's. If it fails because other ranks are gone, finds out which, and
  /// throws UserError with the cause; if it fails by itself, tells the others.
  void run(const std::function<void()>& loop);

  // Rows

  /// Makes a row with one document for each sample, and this rank's share of it. Throws UserError
  /// for ids outside the vocabulary. Not collective.
  Row row(std::vector<Sample> samples) const;
  Row row(const DrawnExamples& drawn) const;
  /// Returns the sums over the global batch. Does not wait for the GPU.
  BatchCounts count(std::span<const Row> rows) const;
  /// Returns the sum of `value` over the data-parallel groups, for the denominators of a caller's
  /// loss.
  double sum_over_groups(double value) const;

  // Steps

  /// Sets the number of the next step, from 0: it seeds dropout. update() and drop() count on.
  void begin_step(int64_t step);
  /// Starts to read the pixels of rows that later calls of forward_backward() compute, in this
  /// order, beside other work; they wait in host memory (kPixelsAheadBytes). Each row is read ahead
  /// once. No-op without pictures. Not collective.
  void read_ahead(std::span<const Row> rows);
  /// Adds the gradient of the stage's loss, whose denominator is `total_weight`. `stops`: asked
  /// after each row in a session of one process; if it returns true, later rows are left out.
  RowLosses forward_backward(std::span<const Row> rows, double total_weight,
                             const std::function<bool()>& stops = {});
  /// The same with a loss of the caller's.
  RowLosses forward_backward(std::span<const Row> rows, const LossOfCaller& loss,
                             const std::function<bool()>& stops = {});
  /// Sums the step's loss and some flags (0 or 1) over all ranks. Does not wait for the GPU. Adds
  /// the loads of experts to averages(). Called once after forward_backward().
  SumsOfStep sum_up(const RowLosses& losses, const std::vector<double>& flags = {});
  /// Sums the gradients over all ranks. Returns their norm.
  double reduce();
  /// Scales the gradients by min(1, max_norm / (norm + 1e-6)).
  void clip(double norm, double max_norm);
  /// Updates the parameters by the optimizer, and drops the gradients.
  void update(double learning_rate);
  /// Drops the gradients without an update.
  void drop();

  // Results

  /// Returns the mean of the stage's loss over the examples, and its means by name. `batch_size`:
  /// examples per row. Calls `stops` about every half second; nullopt: it returned true on a rank.
  std::optional<EvaluationResult> evaluate(const ExampleSet& examples, int64_t batch_size,
                                           const std::function<bool()>& stops = {});
  /// Returns log p of the row's labels on this rank, [L] fp64, without gradients.
  at::Tensor label_logprobs(const Row& row);
  /// Answers prompts (token ids) with the present parameters, on the CPU of rank 0. Returns the
  /// answers on every rank. `num_at_a_time`: sequences in the key-value cache. Gathers sharded
  /// parameters; rank 0 then holds the whole model once more.
  std::vector<Answer> generate(const std::vector<std::vector<int32_t>>& prompts,
                               const GenerationOptions& options, int64_t num_at_a_time = 8);
  /// Saves the model, or the adapter, as a Hugging Face folder.
  void save(const std::string& folder);
  /// Saves folder/checkpoint-N after N steps: the model, the optimizer's state and `source`, the
  /// state of the caller's source of rows. Returns the checkpoint's folder.
  std::string save_checkpoint(const std::string& folder, const std::string& source = "");
  /// Loads a checkpoint of save_checkpoint() or of a run, and continues after its step. Returns
  /// `source`.
  std::string load_checkpoint(const std::string& checkpoint);

  // Parts

  const Mesh& mesh() const;
  const ModelConfig& model() const;
  const SequenceParallel& attention() const;
  at::Device device() const;
  /// True if every rank takes part in every row (ObjectiveContext::idle_rows).
  bool idle_rows() const;
  const TrainedModel& trained() const;
  const std::vector<NamedTensor>& parameters() const;
  /// Number of updates and drops so far, or as set by begin_step.
  int64_t step() const;
  /// Values besides the loss, summed over this rank's rows since they were last cleared.
  Averages& averages();
  /// Returns the means of averages() over all ranks, completed by the objective, in the order of a
  /// log line.
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
