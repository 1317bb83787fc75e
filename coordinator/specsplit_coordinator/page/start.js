showRequests({ requests: [] }); // the empty rows, which keep the places of those to come
poll();
