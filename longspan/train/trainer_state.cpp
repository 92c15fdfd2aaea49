// How a Trainer's state gets into checkpoints and out of them.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <map>

#include "longspan/checkpoint/model_folder.h"
#include "longspan/checkpoint/stacked_adapters.h"
#include "longspan/checkpoint/state_parts.h"
#include "longspan/checkpoint/stored_tensors.h"
#include "longspan/config/choices.h"
#include "longspan/config/config.h"
#include "longspan/config/user_error.h"
#include "longspan/liveness/agreement.h"
#include "longspan/models/composite.h"
#include "longspan/models/model_config.h"
#include "longspan/saving/output_folders.h"
#include "longspan/train/trainer.h"

namespace longspan {
namespace {

/// Matrices of adapters that are saved as one of a whole stack: those of part i of E are rows of A
/// and every E-th column of B (checkpoint/stacked_adapters.h).
std::map<std::string, StoredWeights> stacked_matrices(const SavedModel& saved) {
  std::map<std::string, StoredWeights> stored;
  const int64_t r = saved.lora->r;
  for (const StackedAdapter& stack : stacked_adapters(saved.config.spec, saved.lora->modules)) {
    const int64_t E = std::ssize(stack.parts);
    for (int64_t i = 0; i < E; ++i) {
      const ParameterSpec& part = stack.parts[i];
      stored[lora_a_name(part)] = {stack.a_name, i * r * part.shape[1], {}, {}};
      stored[lora_b_name(part)] = {stack.b_name, i, {part.shape[0], r}, {r * E, E}};
    }
  }
  return stored;
}

/// Where a model's file holds a parameter.
StoredWeights place_in_files(const ModelConfig& config, const ParameterSpec& parameter) {
  StoredWeights place{
      name_in_files(config, parameter.stored_as), begin_in_stored(parameter), {}, {}};
  if (is_turned(parameter)) {
    place.shape = parameter.shape;
    place.strides = {1, parameter.shape[0]};
  }
  return place;
}

/// Where a checkpoint's weights hold what is trained.
std::map<std::string, StoredWeights> stored_weights(const SavedModel& saved,
                                                    const std::vector<ParameterPiece>& pieces) {
  if (saved.lora) return stacked_matrices(saved);  // others have their own names
  std::map<std::string, StoredWeights> stored;
  for (const ParameterPiece& piece : pieces) {
    stored[piece.parameter] = place_in_files(saved.config, piece.spec);
  }
  return stored;
}

}  // namespace

std::vector<StateSource> Trainer::state_with_masters() const {
  std::vector<StateSource> states = update_.optimizer().state();
  for (size_t i = 0; i < states.size(); ++i) {
    const ParameterPiece& trained = update_.pieces()[i];
    if (saving_.saver.saves_exactly({trained.parameter, trained.values})) continue;
    states[i] = with_master(std::move(states[i]), trained.values);
  }
  return states;
}

DiskFacts Trainer::disk() const {
  const SavedModel& saved = saving_.saver.model();
  DiskFacts facts = disk_facts(config_, saved.all, saved.lora.has_value(),
                               static_cast<int64_t>(c10::elementSize(saved.dtype)));
  if (!saved.lora) facts.other_bytes += num_kept_bytes(saved.source_folder, saved.config);
  facts.num_processes = world_.size();
  facts.divided = is_divided();
  facts.num_saves = num_saves(interval_of(config_.save_strategy), save_steps_,
                              totals_.progress.step, steps_.total_steps, steps_.steps_per_epoch);
  return facts;
}

bool Trainer::has_room_again() const {
  const auto has_room = [&] {
    return room_in(config_.output_dir).may_take(disk_need(disk()).checkpoint);
  };
  return gather_answers(world_, is_main() && has_room())[0];
}

void Trainer::save_checkpoint() {
  try {
    save_checkpoint_into(config_.output_dir);
    checkpoint_owed_ = false;
  } catch (const std::exception& error) {
    if (!is_agreed(world_, error) || !is_disk_full(error)) throw;
    checkpoint_owed_ = true;
    console_.say(fmt::format(
        "warning: checkpoint-{} is not saved: {} Training goes on; {}. The next one is saved as "
        "soon as there is room.",
        totals_.progress.step, error.what(),
        saving_.checkpoints.last().empty()
            ? "there is no checkpoint yet"
            : fmt::format("{} is whole", saving_.checkpoints.last())));
  }
}

bool Trainer::save_last_checkpoint() {
  return !saving_.patient_saver
              .save({.name = fmt::format("checkpoint-{}", totals_.progress.step),
                     .num_bytes = disk_need(disk()).checkpoint,
                     .remains = saving_.checkpoints.last_text()},
                    output_folders(config_),
                    [&](const std::string& folder) { save_checkpoint_into(folder); })
              .empty();
}

void Trainer::save_checkpoint_into(const std::string& output_dir) {
  const int64_t step = totals_.progress.step;
  heartbeat_.stands_at(step, fmt::format("the saving of checkpoint-{}", step));
  CheckpointContent content{
      .parameters = model_.parameters(),
      .states = {},
      .state = std::nullopt,
      .add_files = [&](const std::string& path) { log_.write_checkpoint(path, totals_.progress); }};
  if (!config_.save_only_model) {
    TrainingState state{.launch = launch_.id,
                        .job = launch_.job,
                        .world_size = world_.size(),
                        .sequence_size = context_.mesh.sequence.size(),
                        .identity = identity_,
                        .totals = totals_,
                        .averages = {},
                        .source = source_.state()};
    for (const std::string& text : world_.gather_text(text_of(averages_.sums()))) {
      state.averages.push_back(averages_from(text));
    }
    content.states = state_with_masters();
    content.state = std::move(state);
  }
  if (is_divided()) content.sharded = sharded_;
  const std::string folder = saving_.checkpoints.save(output_dir, step, content);
  last_saved_step_ = step;
  if (is_main()) console_.say(fmt::format("Saved {}", folder));
}

void Trainer::resume(const ResumePoint& from) {
  all_or_none_patiently(world_, notices_, [&] {
    const RunTotals& totals = from.state.totals;
    if (totals.progress.step > steps_.total_steps) {
      throw UserError(fmt::format(
          "{} is at step {}, and this configuration ends at step {}. Raise num_train_epochs or "
          "max_steps, or name an earlier checkpoint in resume_from_checkpoint.",
          from.folder, totals.progress.step, steps_.total_steps));
    }
    load_optimizer(
        StateReader(from.folder, stored_weights(saving_.saver.model(), update_.pieces())),
        update_.optimizer());
    totals_ = totals;
    totals_.progress.total_steps = steps_.total_steps;
    source_.resume(from.state.source);
    averages_.set(averages_for(from.state, world_.rank(), world_.size()));
    last_saved_step_ = totals_.progress.step;
    if (is_main()) log_.restore(from.folder);
  });
  update_.publish();
}

}  // namespace longspan
