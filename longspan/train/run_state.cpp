#include "longspan/train/run_state.h"

#include <string>

#include "longspan/report/averages.h"
#include "longspan/session/model_update.h"
#include "longspan/session/saved_state.h"
#include "longspan/stages/objective.h"

namespace longspan {

RunState::RunState(const Mesh& mesh, const RunStart& start, const ModelSaver& saver,
                   ExampleSource& source, Session& session)
    : mesh_(mesh), start_(start), saver_(saver), source_(source), session_(session) {}

TrainingState RunState::collect(const RunTotals& totals) {
  TrainingState state{.launch = start_.launch.id,
                      .job = start_.launch.job,
                      .world_size = mesh_.world.size(),
                      .sequence_size = mesh_.sequence.size(),
                      .identity = start_.identity,
                      .totals = totals,
                      .averages = {},
                      .source = source_.state(),
                      .objective = session_.objective().state()};
  if (std::string rows = source_.fingerprint(); !rows.empty()) {
    state.identity.rows = std::move(rows);
  }
  for (const std::string& text : mesh_.world.gather_text(text_of(session_.averages().sums()))) {
    state.averages.push_back(averages_from(text));
  }
  return state;
}

void RunState::restore(const ResumePoint& from) {
  load_state(from.folder, saver_, session_.updating());
  source_.resume(from.state.source);
  if (!from.state.objective.empty()) session_.objective().resume(from.state.objective);
  session_.averages().set(averages_for(from.state, mesh_.world.rank(), mesh_.world.size()));
}

}  // namespace longspan
