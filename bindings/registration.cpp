#include "bindings/registration.h"

#include <c10/util/Exception.h>

#include "longspan/base/user_error.h"
#include "longspan/rendezvous/communication_error.h"

namespace longspan {

void throw_for_python() {
  try {
    throw;
  } catch (const UserError& error) {
    throw c10::ValueError({__func__, __FILE__, __LINE__}, error.what());
  } catch (const CommunicationError& error) {
    throw c10::DistError({__func__, __FILE__, __LINE__}, error.what());
  }
}

}  // namespace longspan
