#include "longspan/saving/background_saving.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "longspan/liveness/agreement.h"

namespace longspan {
namespace {

/// Long enough for renames, and short enough for a run that ends by an error.
constexpr std::chrono::seconds kAtEnd{2};

}  // namespace

BackgroundSaving::~BackgroundSaving() {
  if (work_.valid()) work_.wait_for(kAtEnd);
}

void BackgroundSaving::launch() {
  const auto result = std::make_shared<std::promise<void>>();
  work_ = result->get_future();
  const auto run = [result](std::function<void()> work) {
    std::exception_ptr error;
    try {
      work();
    } catch (...) {
      error = std::current_exception();
    }
    work = nullptr;  // a temporary folder goes before the run may make another of this name
    error ? result->set_exception(error) : result->set_value();
  };
  try {
    // Detached: the disk may hang, and a failing run must end all the same. The work owns all that
    // it uses.
    std::thread(run, write_->work()).detach();
  } catch (const std::system_error&) {
    run(write_->work());  // no thread is left
  }
}

void BackgroundSaving::start(std::unique_ptr<CheckpointWrite> write) {
  write_ = std::move(write);
  launch();
}

bool BackgroundSaving::end_work(const std::function<void(const std::function<void()>&)>& agree) {
  try {
    agree([this] { work_.get(); });
    if (!write_->go_on()) return true;
    launch();
    return false;
  } catch (...) {
    write_.reset();
    throw;
  }
}

std::unique_ptr<CheckpointWrite> BackgroundSaving::advance() {
  const bool ended = work_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  const std::vector<bool> all = gather_answers(world_, ended);
  if (!std::ranges::all_of(all, std::identity())) return nullptr;
  const bool complete = end_work([this](const auto& phase) { all_or_none(world_, phase); });
  return complete ? std::move(write_) : nullptr;
}

std::unique_ptr<CheckpointWrite> BackgroundSaving::finish() {
  const auto patiently = [this](const auto& phase) {
    all_or_none_patiently(world_, notices_, phase);
  };
  while (!end_work(patiently)) {
  }
  return std::move(write_);
}

}  // namespace longspan
