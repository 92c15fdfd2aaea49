#include "bindings/session_of_python.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "longspan/base/user_error.h"
#include "longspan/config/config.h"
#include "longspan/liveness/agreement.h"
#include "longspan/session/attended_model.h"
#include "longspan/session/picture_files.h"
#include "longspan/train/encoded_data.h"

namespace longspan {

SessionOfPython::SessionOfPython(const std::string& file, const std::vector<std::string>& overrides,
                                 int64_t listener, int64_t port, bool has_pictures)
    : sink_(listener) {
  Config config = load_session_config(file, overrides);
  config.data.rows_have_pictures = has_pictures;
  if (has_pictures) {
    const std::string& folder = config.model.model_name_or_path;
    pictures_ = std::make_unique<SessionPictures>(
        RowSettings{config.model, config.method, config.data, config.optimization.seed},
        model_config_for(config, folder));
  }
  const Rendezvous where = rendezvous_at(port);
  world_size_ = where.world_size;
  plan_here(config, where);
  session_ = std::make_unique<Session>(
      config, SessionParts{.machine = machine_of_python(),
                           .where = where,
                           .events = &sink_,
                           .patches = pictures_ ? pictures_->patches(frame_patches_of(config, {}))
                                                : FramePatches{}});
  for (const std::string& note : config.notes) session_->events().say(note);
}

SessionOfPython::~SessionOfPython() {
  // Python's garbage collector calls this destructor at a different time on each rank, and closing
  // is collective.
  if (world_size_ > 1) static_cast<void>(session_.release());
}

Session& SessionOfPython::open() {
  if (session_) return *session_;
  throw UserError(
      fmt::format("this session cannot be used: {}; make another session", why_closed_));
}

void SessionOfPython::guarded(const std::function<void(Session&)>& function) {
  Session& session = open();
  if (world_size_ == 1) return function(session);
  try {
    session.run([&] { function(session); });
  } catch (const AgreedError&) {
    throw;
  } catch (const FailedElsewhere&) {
    throw;
  } catch (const std::exception& error) {
    why_closed_ = fmt::format("it has failed ({})", error.what());
    session_.reset();
    throw;
  }
}

void SessionOfPython::close(const std::string& why) {
  for_python([&] {
    if (!session_) return;
    if (world_size_ > 1 && !why.empty()) {
      try {
        session_->run([&] { throw std::runtime_error(why); });
      } catch (const std::runtime_error&) {
      }
    }
    session_.reset();
  });
}

RowLosses SessionOfPython::forward_backward(Session& session, const std::vector<Row>& rows,
                                            PythonLoss loss, bool reads_hidden_states,
                                            bool whole_row) {
  const LossOfCaller of_python{
      .reads =
          reads_hidden_states ? LossOfCaller::Reads::kHiddenStates : LossOfCaller::Reads::kLogprobs,
      .of_row =
          [&](const LossInput& input) {
            input_ = &input;
            loss_ = at::Tensor();
            const int status = loss();
            input_ = nullptr;
            if (status != 0 || !loss_.defined()) {
              throw std::runtime_error("the loss function has raised an exception");
            }
            return std::exchange(loss_, at::Tensor());
          },
      .whole_row = whole_row};
  return session.forward_backward(rows, of_python);
}

const LossInput& SessionOfPython::input() const {
  if (input_ == nullptr) {
    throw UserError("the input of a loss can be used only while the loss function runs");
  }
  return *input_;
}

void SessionOfPython::take_loss(const at::Tensor& loss) {
  static_cast<void>(input());
  if (loss.numel() != 1 || !loss.is_floating_point()) {
    throw UserError(fmt::format(
        "the loss function returned a tensor of shape {}, and must return one floating-point "
        "number: sum it",
        loss.sizes()));
  }
  if (!loss.requires_grad()) {
    throw UserError(
        "the loss function returned a tensor without a gradient: compute it from the input, also "
        "for a rank without labels (for example, the sum of logprobs)");
  }
  loss_ = loss.reshape({});
}

}  // namespace longspan
