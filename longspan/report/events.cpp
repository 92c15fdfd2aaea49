#include "longspan/report/events.h"

#include <utility>

#include "longspan/text/deferred_warnings.h"

namespace longspan {

Events::Events(int rank, EventSink* sink) : rank_(rank) {
  if (sink != nullptr) sinks_.push_back(sink);
}

void Events::tell(const Event& event) const {
  const Said* said = std::get_if<Said>(&event);
  if (rank_ != 0 && (said == nullptr || !said->of_any_rank)) return;
  for (EventSink* sink : sinks_) sink->take(event);
}

void Events::say_deferred_warnings() const {
  for (std::string& warning : take_deferred_warnings()) {
    tell(Said{.text = std::move(warning), .of_any_rank = true});
  }
}

}  // namespace longspan
