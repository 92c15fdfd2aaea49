#include "longspan/session/session.h"

#include <c10/core/GradMode.h>

#include <utility>

#include "longspan/account/run_account.h"
#include "longspan/base/user_error.h"
#include "longspan/config/config.h"
#include "longspan/cuda/cuda.h"
#include "longspan/expert_parallel/expert_parallel.h"
#include "longspan/liveness/agreement.h"
#include "longspan/memory/activation_offload.h"
#include "longspan/models/decoder.h"
#include "longspan/registers/stage.h"
#include "longspan/report/averages.h"
#include "longspan/saving/checkpoints.h"
#include "longspan/sequence_parallel/row_groups.h"
#include "longspan/session/answers.h"
#include "longspan/session/backends.h"
#include "longspan/session/counted_traffic.h"
#include "longspan/session/evaluation.h"
#include "longspan/session/expert_balance.h"
#include "longspan/session/host_sums.h"
#include "longspan/session/load_kernels.h"
#include "longspan/session/model_update.h"
#include "longspan/session/parameter_sources.h"
#include "longspan/session/picture_files.h"
#include "longspan/session/row_pass.h"
#include "longspan/session/rows_ahead.h"
#include "longspan/session/saved_state.h"
#include "longspan/session/session_own.h"
#include "longspan/session/shared_tower.h"
#include "longspan/session/step_sums.h"
#include "longspan/session/trained_model.h"
#include "longspan/session/workers.h"
#include "longspan/settings/choices.h"
#include "longspan/stages/objective.h"
#include "longspan/stages/reference.h"

namespace longspan {

struct Session::Impl {
  Impl(const Config& settings, const RunPlan& the_plan, Workers& the_workers, Events& the_events,
       const ModelParts* model, const FramePatches& read)
      : config(settings),
        plan(the_plan),
        workers(the_workers),
        events(the_events),
        device(device_of(plan.device, plan.own_gpu())),
        given(model != nullptr ? &model->parameters : nullptr),
        ahead(frame_patches_of(config, model != nullptr ? model->patches : read)),
        patches(ahead.patches()),
        attention(make_attention(plan.parallel, workers.mesh(), block_kernel_of(plan.device))),
        row_groups(plan.by_degree, workers.mesh(), block_kernel_of(plan.device)),
        sharding(sharding_of(config, workers.mesh(), device)) {
    if (plan.parallel.expert_parallel_size > 1) {
      experts = std::make_unique<ExpertParallel>(workers.mesh().experts);
    }
    row_groups.connect(plan.ranks());
    load_kernels(plan, kernel_uses(config), workers, events);
    all_or_none_patiently(workers.world(), workers.notices(), [&] {
      activations = activation_offload(config.memory, device);
      trained = load_trained_model(config, {plan.model, sharding, device, given});
      trained.options.activation_store = activations.get();
      trained.options.expert_exchange = experts.get();
      pictures = make_picture_features(plan.model.spec, trained.parameters, trained.options,
                                       patches, *attention, block_kernel_of(plan.device));
      trained.options.pictures = pictures.get();
      trained.sum_over(workers.world());
      decoder =
          std::make_unique<Decoder>(plan.model.spec, trained.in_use(), *attention, trained.options);
    });
    require_same_adapter(config.method, trained.first_adapter, workers.world());
  }

  /// With distributed experts, a rank also computes rows of other ranks.
  bool idle_rows() const { return (sharding && sharding->stage >= 2) || experts; }

  SequenceParallel& attention_of_reference() {
    if (!plan.reference_parallel) return *attention;
    reference_attention =
        make_attention(*plan.reference_parallel, workers.mesh(), block_kernel_of(plan.device));
    return *reference_attention;
  }
  void read_ahead(std::span<const Row> rows) {
    if (!pictures) return;
    const bool has_teacher = reference && stage_of(config.method).compares_distributions;
    ahead.read(rows, *pictures,
               {.num_passes = objective->precomputes() ? 2 : 1, .of_pass = has_teacher ? 2 : 1});
  }

  /// Runs forward and backward of the rows, after the passes that an objective needs before.
  RowLosses pass(std::span<const Row> rows, Objective& of_rows, double total_weight,
                 const std::function<bool()>& stops, bool ends_step) {
    RowPass row_pass(*context, of_rows, balance.get(), *updating, *traffic,
                     config.optimization.seed);
    read_ahead(rows);
    traffic->count_references(true);
    row_pass.look_at(rows, step);
    Averages others;
    // With rows that have ranks of their own, waits for sums in a backward could be in a circle.
    const bool sums_early = ends_step && plan.by_degree.empty();
    RowLosses losses{.contributions = {}, .replicated = of_rows.replicated(), .counted = {}};
    for (size_t i = 0; i < rows.size(); ++i) {
      // Values that all ranks of a row know are counted once.
      Averages& sums = rows[i].leads() ? averages : others;
      if (sums_early && i + 1 == rows.size()) updating->begin_last_row();
      losses.contributions.push_back(row_pass.run(rows[i], i, step, total_weight, sums));
      losses.counted.push_back(rows[i].leads() || !losses.replicated);
      if (stops && context->mesh.world.size() == 1 && stops()) break;
    }
    traffic->count_references(false);
    // A rank without rows takes part in the others' count.
    if (balance && rows.empty()) balance->count_step();
    if (sums_early) updating->start_sums();
    return losses;
  }

  std::unique_ptr<SessionOwn> own;
  const Config& config;
  const RunPlan& plan;
  Workers& workers;
  Events& events;
  at::Device device;
  GivenParameters given;
  RowsAhead ahead;
  FramePatches patches;  // by `ahead`
  std::unique_ptr<SequenceParallel> attention;
  RowGroups row_groups;                                   // of rows with ranks of their own
  std::unique_ptr<SequenceParallel> reference_attention;  // null: `attention`
  std::optional<ShardingOptions> sharding;
  std::unique_ptr<ActivationOffload> activations;  // outlives every graph
  std::unique_ptr<ExpertParallel> experts;         // the same; null: every rank has all experts
  TrainedModel trained;
  std::unique_ptr<SharedTower> pictures;  // null: rows have none
  std::unique_ptr<Decoder> decoder;
  std::unique_ptr<Reference> reference;
  std::optional<ObjectiveContext> context;
  std::unique_ptr<Objective> objective;
  std::optional<ModelUpdate> updating;
  std::unique_ptr<ExpertBalance> balance;  // null if the model has no experts
  std::optional<RowTraffic> traffic;
  Averages averages;
  int64_t step = 0;
};

Session::Session(const Config& config, const SessionParts& parts) {
  auto own = std::make_unique<SessionOwn>(config, parts);
  try {
    own->workers.guarded([&] {
      own->workers.meet();
      impl_ = std::make_unique<Impl>(*own->config, own->plan, own->workers, own->events,
                                     parts.model, parts.patches);
      prepare();
      return RunEnd::kDone;
    });
  } catch (...) {
    impl_.reset();  // before the parts that it refers to
    throw;
  }
  impl_->own = std::move(own);
}

Session::Session(const Config& config, const RunPlan& plan, Workers& workers, Events& events,
                 const ModelParts* model)
    : impl_(std::make_unique<Impl>(config, plan, workers, events, model, FramePatches{})) {}

Session::~Session() {
  const std::unique_ptr<SessionOwn> own = std::move(impl_->own);
  impl_.reset();
  if (own) own->workers.leave();
}

std::unique_ptr<Reference> Session::make_reference() {
  return longspan::make_reference(impl_->config,
                                  {impl_->plan.model, impl_->sharding, impl_->device, impl_->given,
                                   &impl_->patches, &block_kernel_of(impl_->plan.device)},
                                  impl_->trained, *impl_->decoder, impl_->attention_of_reference(),
                                  /*follows_rows=*/!impl_->plan.reference_parallel);
}

void Session::prepare(std::unique_ptr<Reference> table) {
  Impl& s = *impl_;
  const Stage& stage = stage_of(s.config.method);
  const bool output_is_known = s.activations && !s.attention->overlaps_projections();
  s.traffic.emplace(row_traffic_of(
      s.config, {s.plan, s.workers.mesh(), s.experts.get(), s.device, output_is_known}));
  if (table) {
    s.reference = std::move(table);
  } else if (stage.has_reference(s.config.preferences)) {
    all_or_none_patiently(s.workers.world(), s.workers.notices(), [&] {
      if (s.config.preferences.precompute_ref_log_probs) {
        throw UserError(
            "precompute_ref_log_probs computes a table for the rows of a data set, which only "
            "`longspan train` has; remove the key");
      }
      s.reference = counted_reference(make_reference(), *s.traffic);
    });
  }
  s.context.emplace(ObjectiveContext{.preferences = s.config.preferences,
                                     .mesh = s.workers.mesh(),
                                     .attention = *s.attention,
                                     .model = *s.decoder,
                                     .specs = s.trained.specs,
                                     .device = s.device,
                                     .reference = s.reference.get(),
                                     .idle_rows = s.idle_rows()});
  s.objective = stage.make(*s.context);
  s.updating.emplace(s.trained.parameters, s.trained.specs, s.trained.sharded.get(),
                     s.trained.sums.get(), s.config.optimization,
                     s.config.memory.offload_optimizer);
  s.updating->set_packed(s.trained.packed.get());
  s.balance = ExpertBalance::make(s.config.optimization, *s.context, s.plan.model,
                                  /*rows_vary=*/deals_rows(s.config.parallel));
}

void Session::run(const std::function<void()>& loop) {
  impl_->workers.guarded([&] {
    loop();
    return RunEnd::kDone;
  });
}

Row Session::row(std::vector<Sample> samples) const { return row(examples_of(std::move(samples))); }

Row Session::row(const DrawnExamples& drawn) const { return row(DrawnRow{drawn}); }

Row Session::row(const DrawnRow& drawn) const {
  const ObjectiveContext& context = *impl_->context;
  SequenceParallel& attention =
      drawn.ranks ? impl_->row_groups.of(*drawn.ranks) : context.attention;
  Row row = make_row(drawn.drawn, impl_->objective->documents(), attention, context.device);
  context.model.check_ids(row.whole);
  return row;
}

std::function<BatchCounts()> Session::start_count(std::span<const Row> rows) const {
  return start_counts(rows, *impl_->objective, mesh());
}

double Session::sum_over_groups(double value) const {
  return sums_over(mesh().data_hosts, {value}, at::kCPU)[0];
}

void Session::begin_step(int64_t step) { impl_->step = step; }
void Session::read_ahead(std::span<const Row> rows) { impl_->read_ahead(rows); }

RowLosses Session::forward_backward(std::span<const Row> rows, double total_weight,
                                    const std::function<bool()>& stops, bool ends_step) {
  return impl_->pass(rows, *impl_->objective, total_weight, stops, ends_step);
}

RowLosses Session::forward_backward(std::span<const Row> rows, const LossOfCaller& loss,
                                    const std::function<bool()>& stops) {
  const std::unique_ptr<Objective> objective = objective_of_caller(*impl_->context, loss);
  return impl_->pass(rows, *objective, /*total_weight=*/1.0, stops, /*ends_step=*/false);
}

SumsOfStep Session::sum_up(const RowLosses& losses, const std::vector<double>& flags) {
  Impl& s = *impl_;
  const at::Tensor of_experts = s.balance ? s.balance->loss() : at::Tensor();
  const at::Tensor sums = step_sums(losses, of_experts, flags, s.device);
  mesh().world.sum_(sums);
  const SumsOfStep arriving(sums);
  // Queued behind the sums, so that both have arrived when the host waits for them.
  if (s.balance) s.balance->add_to(s.averages);
  return arriving;
}

double Session::reduce() { return impl_->updating->sum_gradients(); }
void Session::clip(double norm, double max_norm) { impl_->updating->clip(norm, max_norm); }

void Session::update(double learning_rate) {
  impl_->updating->step(learning_rate);
  ++impl_->step;
  impl_->events.say_deferred_warnings();
}

void Session::drop() {
  impl_->updating->drop_gradients();
  ++impl_->step;
}

std::optional<EvaluationResult> Session::evaluate(const ExampleSet& examples, int64_t batch_size,
                                                  const std::function<bool()>& stops) {
  Impl& s = *impl_;
  const EvaluatedRows rows =
      s.plan.by_degree.empty()
          ? EvaluatedRows{*s.attention, mesh().data.rank(), mesh().data.size()}
          : evaluated_rows(s.plan, s.row_groups, mesh().world, examples, batch_size);
  return longspan::evaluate(
      *s.objective, *s.context, rows, examples, batch_size, stops ? stops : [] { return false; });
}

at::Tensor Session::label_logprobs(const Row& row) {
  const c10::NoGradGuard no_grad;
  impl_->decoder->use_attention(*row.attention);
  return impl_->decoder->token_logprobs(row.local);
}

std::vector<Answer> Session::generate(const std::vector<std::vector<int32_t>>& prompts,
                                      const GenerationOptions& options, int64_t num_at_a_time,
                                      const std::function<bool()>& go_on, bool on_all_ranks) {
  Impl& s = *impl_;
  return answers_of({s.plan.model, s.trained, s.workers.world(), s.workers.notices()}, prompts,
                    options, num_at_a_time, go_on, on_all_ranks);
}

void Session::save(const std::string& folder) {
  const ModelSaver saver = this->saver(std::nullopt);
  const Group& world = impl_->workers.world();
  if (ShardedParameters* sharded = sharded_parameters()) {
    saver.save_final_together(folder, *sharded, world, impl_->workers.notices());
  } else {
    all_or_none_patiently(world, impl_->workers.notices(), [&] {
      if (world.rank() == 0) saver.save_final(folder, parameters());
    });
  }
  events().tell(ModelSaved{.model_folder = folder, .record_folder = {}});
}

std::string Session::save_checkpoint(const std::string& folder, const std::string& source) {
  Impl& s = *impl_;
  const ModelSaver saver = this->saver(std::nullopt);
  OutputSettings output = s.config.output;
  output.output_dir = folder;
  all_or_none(mesh().world, [&] {
    if (mesh().world.rank() == 0) prepare_output_dir(folder);
  });
  Checkpoints checkpoints(output, mesh().world, s.workers.notices(), saver, /*last=*/"");
  const auto saved = checkpoints.save(folder, s.step,
                                      {.parameters = parameters(),
                                       .states = optimizer_state(*s.updating, saver),
                                       .sharded = sharded_parameters(),
                                       .state = state_of_session(mesh(), s.step, source),
                                       .texts = {}});
  events().tell(CheckpointSaved{saved.folder, s.step});
  return saved.folder;
}

std::string Session::load_checkpoint(const std::string& checkpoint) {
  Impl& s = *impl_;
  const std::string problem = broken_part(mesh().world, s.workers.notices(), checkpoint);
  TrainingState state;
  all_or_none_patiently(mesh().world, s.workers.notices(), [&] {
    if (!problem.empty()) throw UserError(checkpoint + " is broken: " + problem);
    state = read_training_state(checkpoint);
    load_state(checkpoint, saver(std::nullopt), *s.updating);
  });
  s.updating->publish();
  s.step = state.totals.progress.step;
  return state.source;
}

const Mesh& Session::mesh() const { return impl_->workers.mesh(); }
const ModelConfig& Session::model() const { return impl_->plan.model; }
SequenceParallel& Session::attention() const { return *impl_->attention; }
at::Device Session::device() const { return impl_->device; }
bool Session::idle_rows() const { return impl_->idle_rows(); }
const TrainedModel& Session::trained() const { return impl_->trained; }
const std::vector<NamedTensor>& Session::parameters() const { return impl_->trained.parameters; }
int64_t Session::step() const { return impl_->step; }
Averages& Session::averages() { return impl_->averages; }

NamedMeans Session::means() {
  std::vector<std::string> names = impl_->objective->averages();
  if (impl_->balance) {
    for (const std::string& name : impl_->balance->averages()) names.push_back(name);
  }
  return impl_->objective->completed(impl_->averages.means(mesh().world, names, impl_->device));
}

ShardedParameters* Session::sharded_parameters() const {
  ShardedParameters* sharded = impl_->trained.sharded.get();
  return sharded != nullptr && !sharded->all_are_here() ? sharded : nullptr;
}

const ObjectiveContext& Session::context() const { return *impl_->context; }
Objective& Session::objective() { return *impl_->objective; }
ModelUpdate& Session::updating() { return *impl_->updating; }
RowTraffic& Session::traffic() { return *impl_->traffic; }
Events& Session::events() const { return impl_->events; }

RunParameters Session::account() const {
  const TrainedModel& trained = impl_->trained;
  RunParameters parameters{.used = trained.held(), .sharded = std::nullopt, .reference = {}};
  if (trained.sharded) parameters.sharded = trained.sharded->held_bytes();
  if (trained.sharded && trained.packed) parameters.sharded->device += trained.packed->held_bytes();
  if (impl_->reference) parameters.reference = impl_->reference->held_bytes();
  return parameters;
}

ModelSaver Session::saver(const std::optional<SavedChat>& chat) const {
  return ModelSaver(saved_model(impl_->config, impl_->plan.model, impl_->trained, chat));
}

}  // namespace longspan
