#include "bindings/registration.h"

#include <c10/util/Exception.h>

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

}  // namespace longspan
