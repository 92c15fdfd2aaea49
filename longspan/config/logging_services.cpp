#include "longspan/config/logging_services.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace longspan {

std::string remedy_of_service(std::string_view name) {
  using Call = std::pair<std::string_view, std::string_view>;
  static const std::vector<Call> calls = {
      {"comet_ml", "experiment.log_metrics(entry, step=entry[\"step\"])"},
  };
  const auto call = std::ranges::find(calls, name, &Call::first);
  return fmt::format(
      "trainer_state.json in output_dir holds every logged number (log_history), to be given to "
      "that service's own Python package{}; report_to: tensorboard writes event files",
      call == calls.end() ? "" : fmt::format(" ({})", call->second));
}

}  // namespace longspan
