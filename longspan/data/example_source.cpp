#include "longspan/data/example_source.h"

#include "longspan/base/user_error.h"

namespace longspan {

DrawnExamples Epochs::next(int64_t epoch, int64_t batch) {
  return draw(examples_, loader_.rows(epoch, batch));
}

std::vector<DrawnRow> ExampleSource::rows(const StepPlace& step) {
  std::vector<DrawnRow> rows;
  for (int64_t batch = step.begin_batch; batch < step.end_batch; ++batch) {
    rows.push_back({next(step.epoch, batch)});
  }
  return rows;
}

void Epochs::resume(const std::string& state) { refuse_stream_state(state); }

void refuse_stream_state(const std::string& state) {
  if (state.empty()) return;
  throw UserError(
      "The checkpoint is of a run that trained on a stream of examples, and this one trains on a "
      "data set. Name another checkpoint in resume_from_checkpoint, or begin anew in another "
      "output_dir.");
}

}  // namespace longspan
