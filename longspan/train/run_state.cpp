#include "longspan/train/run_state.h"

#include <string>

#include "longspan/session/saved_state.h"

namespace longspan {

RunState::RunState(const Mesh& mesh, const RunStart& start, const ModelSaver& saver,
                   ModelUpdate& update, ExampleSource& source, Objective& objective,
                   Averages& averages)
    : mesh_(mesh),
      start_(start),
      saver_(saver),
      update_(update),
      source_(source),
      objective_(objective),
      averages_(averages) {}

TrainingState RunState::collect(const RunTotals& totals) {
  TrainingState state{.launch = start_.launch.id,
                      .job = start_.launch.job,
                      .world_size = mesh_.world.size(),
                      .sequence_size = mesh_.sequence.size(),
                      .identity = start_.identity,
                      .totals = totals,
                      .averages = {},
                      .source = source_.state(),
                      .objective = objective_.state()};
  for (const std::string& text : mesh_.world.gather_text(text_of(averages_.sums()))) {
    state.averages.push_back(averages_from(text));
  }
  return state;
}

void RunState::restore(const ResumePoint& from) {
  load_state(from.folder, saver_, update_);
  source_.resume(from.state.source);
  if (!from.state.objective.empty()) objective_.resume(from.state.objective);
  averages_.set(averages_for(from.state, mesh_.world.rank(), mesh_.world.size()));
}

}  // namespace longspan
