// Time to cross a link on which connections rest in between.
//
// BBR sends 2.89 times as fast as its connection has ever delivered, until it finds that the link
// gives no more. A connection that carries an object now and then, and waits for acknowledgements
// in between, never finds that out: it has delivered so many bytes in a round trip and the time
// that they took to leave. So however fast the link, what it carries takes half a round trip more.
// tests/experiments/planner_check.py has a case where that is most of the exchange.
#ifndef CAUSEWAY_SERVER_PLANNER_RESTED_CONNECTIONS_H_
#define CAUSEWAY_SERVER_PLANNER_RESTED_CONNECTIONS_H_

namespace causeway::server {

// How much later than at the link's full rate an object of so many bytes has crossed, over that
// many connections which have carried nothing larger before. 0 where the link is what holds the
// object up, for what a connection sends at once, and at an infinite rate.
double RestedSeconds(double bytes, double bit_per_s, int connections, double round_trip_seconds);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_PLANNER_RESTED_CONNECTIONS_H_
