#include "longspan/text/event_file.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "longspan/text/rust_call.h"

namespace longspan {

struct EventFile::Impl {
  LsrEvents* events = nullptr;
  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() { lsr_events_free(events); }
};

EventFile::EventFile(const std::string& folder, const std::string& suffix, int64_t last_step)
    : impl_(std::make_unique<Impl>()) {
  rust_call(lsr_events_new, rust_view(folder), rust_view(suffix), last_step, &impl_->events);
}

EventFile::EventFile(EventFile&&) noexcept = default;
EventFile& EventFile::operator=(EventFile&&) noexcept = default;
EventFile::~EventFile() = default;

void EventFile::add(const std::vector<std::pair<std::string, double>>& scalars, int64_t step) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [tag, value] : scalars) {
    if (std::isfinite(value)) {
      json[tag] = value;
    } else {
      json[tag] = std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
    }
  }
  const std::string text = json.dump();
  rust_call(lsr_events_add, impl_->events, rust_view(text), step);
}

}  // namespace longspan
