#include "bindings/registration.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>

#include "bindings/traced.h"
#include "longspan/base/user_error.h"
#include "longspan/liveness/agreement.h"
#include "longspan/liveness/lost_ranks.h"
#include "longspan/rendezvous/communication_error.h"

namespace longspan {

void throw_for_python() {
  try {
    throw;
  } catch (const LostRanks& error) {
    throw c10::DistError({__func__, __FILE__, __LINE__}, error.what());
  } catch (const UserError& error) {
    throw c10::ValueError({__func__, __FILE__, __LINE__}, error.what());
  } catch (const FailedElsewhere& error) {
    throw c10::ValueError({__func__, __FILE__, __LINE__}, error.what());
  } catch (const CommunicationError& error) {
    throw c10::DistError({__func__, __FILE__, __LINE__}, error.what());
  }
}

void raise_in_backward(const CommunicationError& error) {
  if (torch::autograd::get_current_graph_task_id() < 0) return;
  operator_named<void(std::string)>("longspan::raise_communication_error").call(error.what());
}

TORCH_LIBRARY_FRAGMENT(longspan, library) {
  library.def("raise_communication_error(str message) -> ()");  // _native.py has its function
}

}  // namespace longspan
